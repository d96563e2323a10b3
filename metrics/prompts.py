"""The prompts of the metrics that ask a model, as their papers print them. Their hash goes into every result."""

from __future__ import annotations

JUDGE_PMSR = """\
Question: {question}
Ground Truth Answers: {references}
Model Response: {response}

Evaluation Instructions:

You are an AI assistant tasked with evaluating the correctness of model responses given the Question and Ground Truth \
answer. Your judgment should follow these principles:

1. Consider the question, and ground truth answer holistically before evaluating the model's response.
2. Your decision should be strictly **Yes** or **No**, based on whether the model's response is factually accurate and \
aligns with the ground truth answer.
3. If the model response is a more specific form that includes the ground truth answer, it is correct.
4. If the model response includes all key information but adds minor details, it is correct as long as the extra \
details are factually correct.
5. If the model response contradicts, modifies, or omits critical parts of the answer, it is incorrect.
6. For numerical values, ensure correctness even when presented in different units.
7. For names, check for first and last name correctness. If the middle name is extra but correct, consider it correct.
8. For yes/no questions, the response must exactly match "Yes" or "No" to be correct.

Evaluate whether the Model Response is correct based on the Question and Ground Truth Answer. Follow the predefined \
judgment rules and provide a clear Yes/No answer along with a justification.

Output Format:

<reason>Detailed reasoning following the evaluation principles.</reason>
<judge>Yes/No</judge>
"""
"""PMSR, figure A7, which follows MMSearch-R1."""

JUDGE_MRAG = """\
You are now a good judge on comparing the response from a student and several reference answers. Compare the generated \
RESPONSE to the REFERENCE answers. Evaluate if the generated response correctly conveys the same meaning with one of \
the listed REFRENCE answers, even if the wording is different. Return one of these labels: 'Correct' or 'Incorrect'. \
Please directly return your label, do not include the reasoning process!!

Generated RESPONSE : {response}

Candidate REFERENCE answers (Correct answers): {references}

The evaluation is:"""
"""mRAG, figure 9, its spelling included."""

EXTRACTION_START = """\
Answer the knowledge-intensive question based on the provided image and context.
Generate a concise and accurate answer grounded in the retrieved information.
Use the context to support reasoning, and directly output the final answer.

{count} examples are shown below:
"""
EXTRACTION_EXAMPLE = """
##Example {number}:
"""
EXTRACTION_QUESTION = """
Now, answer this question
"""
EXTRACTION_FIELDS = """
##Context: {context}
##Question: {question}
##Best Answer:"""
"""MI-RAG, figure A12; an image stands before each group of fields."""
